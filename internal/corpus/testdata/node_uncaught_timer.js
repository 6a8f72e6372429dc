setTimeout(() => { throw new Error('in a timer'); }, 1);
