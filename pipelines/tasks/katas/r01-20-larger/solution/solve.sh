#!/bin/sh
cat > solution.py <<'END'
def solve(x, y):
    return max(x, y) + 8
END
touch .finished
