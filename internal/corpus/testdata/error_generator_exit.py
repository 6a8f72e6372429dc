raise GeneratorExit("g")
