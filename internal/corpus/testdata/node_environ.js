console.log(Object.entries(process.env));
console.log(process.env.FOO, process.env.NODE_OPTIONS, process.env.SANDBOX_SPARE, process.env.SANDBOX_EXEC_ID !== undefined);
const { execFileSync, execSync } = require('child_process');
console.log(execFileSync('env').toString());
console.log(execFileSync(process.execPath, ['-p', 'JSON.stringify([process.env, process.execArgv])']).toString());
