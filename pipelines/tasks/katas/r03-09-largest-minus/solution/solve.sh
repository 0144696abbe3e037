#!/bin/sh
cat > solution.py <<'END'
def solve(v):
    return max(v) - 3
END
touch .finished
