#!/bin/sh
cat > solution.py <<'END'
def solve(x):
    return max(x, 9)
END
touch .finished
