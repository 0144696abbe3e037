#!/bin/sh
cat > solution.py <<'END'
def solve(x, y):
    return min(x, y) - 7
END
touch .finished
