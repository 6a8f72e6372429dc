# The wait of a spare bash; docs/spare.md says how it comes to run.
#
# Bash was started as "bash main.sh" with BASH_ENV set, and sources this as the last
# step of its start. After it, bash itself goes on to run main.sh. So all that
# matters is to leave no trace. The argument is $_, which it is after this as well.
_spare() {
  exec 101<&-                                              # this file
  unset BASH_ENV
  printf '\0\0\0\0' >&100                                  # spareControl in Go
  local record
  # By length it is one system call; up to a delimiter it would be one for each byte.
  IFS= read -r -N 65 -u 100 record || exit 0               # the runner has ended
  if [ "${record:64}" = 1 ]; then
    exec 0<&102
  fi
  SANDBOX_EXEC_ID=${record:0:64}
  SANDBOX_EXEC_ID=${SANDBOX_EXEC_ID%% *}
  exec 100<&- 102<&-
  unset -f _spare
  SECONDS=0
}
_spare "$_"
