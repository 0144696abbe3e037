#!/bin/sh
cat > solution.py <<'END'
def solve(x):
    return min(x, 5)
END
touch .finished
