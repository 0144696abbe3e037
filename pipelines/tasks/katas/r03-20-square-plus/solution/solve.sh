#!/bin/sh
cat > solution.py <<'END'
def solve(x):
    return x * x + 4
END
touch .finished
