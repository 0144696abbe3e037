#!/bin/sh
cat > solution.py <<'END'
def solve(s):
    return s.replace('d', 'o')
END
touch .finished
