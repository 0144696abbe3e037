#!/bin/sh
cat > solution.py <<'END'
def solve(v):
    return max(v) - 2
END
touch .finished
