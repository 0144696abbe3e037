#!/bin/sh
cat > solution.py <<'END'
def solve(x):
    return x // 6 - 5
END
touch .finished
