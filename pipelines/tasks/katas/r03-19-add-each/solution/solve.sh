#!/bin/sh
cat > solution.py <<'END'
def solve(v):
    return [i + 6 for i in v]
END
touch .finished
