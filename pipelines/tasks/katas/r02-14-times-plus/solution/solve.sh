#!/bin/sh
cat > solution.py <<'END'
def solve(x):
    return x * 6 + 3
END
touch .finished
