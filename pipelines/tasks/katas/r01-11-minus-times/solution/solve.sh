#!/bin/sh
cat > solution.py <<'END'
def solve(x):
    return (x - 2) * 8
END
touch .finished
