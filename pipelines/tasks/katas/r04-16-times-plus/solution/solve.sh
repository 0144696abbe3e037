#!/bin/sh
cat > solution.py <<'END'
def solve(x):
    return x * 6 + 4
END
touch .finished
