#!/bin/sh
cat > solution.py <<'END'
def solve(x, y):
    return (x + y) * 7
END
touch .finished
