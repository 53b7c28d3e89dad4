// Bundles the card (one self-contained ES module, its style inside) and the lab extension's entry (its imports left to JupyterLab).
import { build } from 'esbuild';

const common = { bundle: true, format: 'esm', target: 'es2022', logLevel: 'warning', loader: { '.css': 'text' } };
const builds = {
  card: { entryPoints: ['src/card/index.ts'], outfile: '../jupyter_aicluster/jupyter/static/card.js', minify: true },
  lab: { entryPoints: ['src/index.ts'], outfile: 'lib/index.js', packages: 'external' }
};
await build({ ...common, ...builds[process.argv[2]] });
