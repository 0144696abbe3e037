#!/bin/sh
cat > solution.py <<'END'
def solve(x):
    return x // 9 - 7
END
touch .finished
