process.on('SIGTERM', () => { console.log('term'); process.kill(process.pid, 'SIGUSR2'); });
process.once('SIGUSR2', () => { console.log('usr2'); clearInterval(t); process.removeAllListeners('SIGTERM'); process.kill(process.pid, 'SIGTERM'); });
const t = setInterval(() => {}, 1000);
process.kill(process.pid, 'SIGTERM');
