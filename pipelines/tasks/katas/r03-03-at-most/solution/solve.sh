#!/bin/sh
cat > solution.py <<'END'
def solve(x):
    return min(x, 2)
END
touch .finished
