exec sh -c 'echo replaced $0; env | grep -c SANDBOX_EXEC_ID; env | grep -c BASH_ENV; exit 6'
