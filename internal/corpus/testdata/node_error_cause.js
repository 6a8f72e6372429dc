class Mine extends Error { constructor(m, o) { super(m, o); this.code = 'E_MINE'; } }
try { JSON.parse('{'); } catch (e) { throw new Mine('outer', { cause: e }); }
