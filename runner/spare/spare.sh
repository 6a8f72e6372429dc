# The wait of a spare bash; docs/spare.md says how it comes to run.
#
# Bash was started as "bash main.sh" with BASH_ENV set, and sources this as the last
# step of its start. After it, bash itself goes on to run main.sh. So all that
# matters is to leave no trace. The argument is $_, which it is after this as well.
_spare() {
  exec 101<&-                                              # this file
  unset BASH_ENV
  printf '\0\0\0\0' >&100                                  # spareControl in Go
  IFS= read -r -d '' -u 100 SANDBOX_EXEC_ID || exit 0      # the runner has ended
  local input
  IFS= read -r -d '' -u 100 input || exit 0
  if [ "$input" = 1 ]; then
    exec 0<&102
  fi
  exec 100<&- 102<&-
  unset -f _spare
  SECONDS=0
}
_spare "$_"
