#!/bin/sh
cat > solution.py <<'END'
def solve(x):
    return x * x + 8
END
touch .finished
