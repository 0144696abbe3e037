#!/bin/sh
cat > solution.py <<'END'
def solve(x, y):
    return max(x, y) + 5
END
touch .finished
