#!/bin/sh
cat > solution.py <<'END'
def solve(s):
    return s.replace('s', 'c')
END
touch .finished
