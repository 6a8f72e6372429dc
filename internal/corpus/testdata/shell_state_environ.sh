echo "[$_] $? $0 $# $- $$" | sed "s/ $$\$//"
declare -p | grep -vE '^declare -[a-zA-Z-]+ (SECONDS|EPOCHSECONDS|EPOCHREALTIME|BASHPID|RANDOM|SRANDOM|PPID|_|BASH_ARGC)=|^declare -- SECONDS$'
declare -p SECONDS | sed 's/"[0-9]*"/"n"/'
declare -F; alias; trap -p; set -o; shopt; umask; ulimit -a; hash; jobs
echo "${BASH_SOURCE[*]} ${FUNCNAME[*]} ${BASH_LINENO[*]} $LINENO $BASH_SUBSHELL $BASH_ENV"
test $PPID -gt 0 && test $BASHPID = $$ && echo "$SHLVL $PWD" | grep -c /
