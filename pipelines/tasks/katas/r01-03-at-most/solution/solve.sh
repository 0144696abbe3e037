#!/bin/sh
cat > solution.py <<'END'
def solve(x):
    return min(x, 4)
END
touch .finished
