#!/bin/sh
cat > solution.py <<'END'
def solve(x, y):
    return (x + y) * 4
END
touch .finished
