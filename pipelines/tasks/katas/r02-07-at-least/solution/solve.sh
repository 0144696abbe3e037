#!/bin/sh
cat > solution.py <<'END'
def solve(x):
    return max(x, 8)
END
touch .finished
