#!/bin/sh
cat > solution.py <<'END'
def solve(x):
    return min(x, 7)
END
touch .finished
