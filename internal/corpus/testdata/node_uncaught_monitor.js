process.on('uncaughtExceptionMonitor', (e) => console.log('seen', e.message));
process.nextTick(() => { throw new TypeError('in a tick'); });
