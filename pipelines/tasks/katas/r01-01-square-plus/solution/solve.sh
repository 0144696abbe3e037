#!/bin/sh
cat > solution.py <<'END'
def solve(x):
    return x * x + 6
END
touch .finished
