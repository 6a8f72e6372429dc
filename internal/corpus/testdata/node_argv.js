console.log(process.argv[1], __filename, process.cwd(), process._preload_modules, Object.getOwnPropertyDescriptor(process, '_preload_modules'));
new (require('worker_threads').Worker)('console.log(process._preload_modules, process.argv.length)', { eval: true });
