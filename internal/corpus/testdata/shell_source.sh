echo 'echo sourced "$@" "${BASH_SOURCE[0]}" $_' > other.sh
. ./other.sh a b
bash other.sh c
BASH_ENV=./other.sh bash -c 'echo inner'
