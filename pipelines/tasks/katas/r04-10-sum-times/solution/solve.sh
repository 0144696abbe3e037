#!/bin/sh
cat > solution.py <<'END'
def solve(x, y):
    return (x + y) * 6
END
touch .finished
