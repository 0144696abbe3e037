#!/bin/sh
cat > solution.py <<'END'
def solve(x):
    return x // 8 - 6
END
touch .finished
