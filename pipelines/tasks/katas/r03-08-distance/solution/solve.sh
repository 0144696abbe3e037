#!/bin/sh
cat > solution.py <<'END'
def solve(x, y):
    return abs(x - y) * 2
END
touch .finished
