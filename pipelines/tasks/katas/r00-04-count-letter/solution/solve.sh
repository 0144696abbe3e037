#!/bin/sh
cat > solution.py <<'END'
def solve(s):
    return s.count('d') + 3
END
touch .finished
