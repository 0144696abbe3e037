#!/bin/sh
cat > solution.py <<'END'
def solve(v):
    return max(v) - 9
END
touch .finished
