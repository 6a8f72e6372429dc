exec(compile("a = 1\n\nraise ValueError('from exec')", "<made>", "exec"))
