#!/bin/sh
cat > solution.py <<'END'
def solve(s):
    return len(s) * 4 + 8
END
touch .finished
