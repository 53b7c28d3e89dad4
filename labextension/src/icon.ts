/** Four joined squares: GPUs that come together. */
export default `<svg xmlns="http://www.w3.org/2000/svg" width="16" height="16" viewBox="0 0 16 16">
<g class="jp-icon3" fill="#616161"><path d="M2 2h5v5H2zM9 2h5v5H9zM2 9h5v5H2zM9 9h5v5H9z"/><path d="M7 4h2v1H7zM7 11h2v1H7zM4 7h1v2H4zM11 7h1v2h-1z"/></g></svg>`;
