echo "$FOO"
