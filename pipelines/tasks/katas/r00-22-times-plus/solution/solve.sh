#!/bin/sh
cat > solution.py <<'END'
def solve(x):
    return x * 3 + 4
END
touch .finished
