// The worker in which the page computes: the engine of live figures, which `engine.js` holds.
importScripts("engine.js");
const serve = twolayerEngine().serve(postMessage);
onmessage = (event) => serve(event.data);
