#!/bin/sh
cat > solution.py <<'END'
def solve(x, y):
    return min(x, y) - 4
END
touch .finished
