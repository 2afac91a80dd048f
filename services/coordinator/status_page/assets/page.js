// The status page: shows /api/v1 to people. Names and messages from outside are inserted as text only.
'use strict';
(() => {

// ---------------------------------------------------------------- elements

const byId = (id) => document.getElementById(id);

// Returns an element with properties, attributes (those with a dash, and `role`) and children: text
// or elements.
function el(tag, properties = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (value === undefined || value === null) continue;
    if (name.includes('-') || name === 'role' || name === 'for') made.setAttribute(name, value);
    else made[name] = value;
  }
  made.append(...children.filter((child) => child !== null && child !== undefined));
  return made;
}

function svg(tag, attributes = {}, ...children) {
  const made = document.createElementNS('http://www.w3.org/2000/svg', tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...children);
  return made;
}

// Text from outside. An element of its own keeps its direction overrides away from the text around it.
const foreign = (text) => el('bdi', {}, text);

// ---------------------------------------------------------------- figures and times

const plain = new Intl.NumberFormat('en', {maximumFractionDigits: 0});
const short = new Intl.NumberFormat('en', {notation: 'compact', maximumSignificantDigits: 3});

function figure(value) {
  if (value === null || value === undefined || !Number.isFinite(value)) return '–';
  const size = Math.abs(value);
  if (size !== 0 && (size < 1e-3 || size >= 1e7)) return Number(value.toPrecision(3)).toExponential();
  return new Intl.NumberFormat('en', {maximumSignificantDigits: size >= 1000 ? 6 : 4}).format(value);
}

const count = (value) => plain.format(Number(value || 0));

function bytes(value) {
  const units = ['B', 'KiB', 'MiB', 'GiB', 'TiB'];
  let size = Number(value || 0), unit = 0;
  for (; size >= 1024 && unit < units.length - 1; ++unit) size /= 1024;
  return `${unit === 0 ? size : size.toFixed(1)} ${units[unit]}`;
}

function span(seconds) {
  if (!Number.isFinite(seconds)) return '–';
  const s = Math.max(0, Math.round(seconds));
  if (s < 60) return `${s} s`;
  if (s < 3600) return `${Math.floor(s / 60)} min ${s % 60} s`;
  if (s < 86400) return `${Math.floor(s / 3600)} h ${Math.floor(s % 3600 / 60)} min`;
  return `${Math.floor(s / 86400)} d ${Math.floor(s % 86400 / 3600)} h`;
}

const moment = (text) => (text ? new Date(text) : null);
const clock = (date) => date.toLocaleString('en-GB', {day: '2-digit', month: 'short', hour: '2-digit', minute: '2-digit', second: '2-digit'});
const seconds = (duration) => (duration ? parseFloat(duration) : NaN);

// ---------------------------------------------------------------- the coordinator

class Refused extends Error {
  constructor(status, error) {
    super(error.what || `the coordinator answered ${status}`);
    this.status = status;
    this.reason = error.reason || '';
    this.hint = error.try || '';
  }
}

async function ask(path) {
  const answer = await fetch(`/api/v1/${path}`, {headers: {Accept: 'application/json'}}).catch(() => null);
  if (!answer) throw new Refused(0, {what: 'the coordinator does not answer'});
  const body = await answer.json().catch(() => ({}));
  if (answer.ok) return body;
  if (answer.status === 401) showLogin();
  throw new Refused(answer.status, body);
}

// Limits concurrent requests, because each occupies a thread of the coordinator.
const waiting = [];
let asking = 0;
function askInTurn(path) {
  return new Promise((resolve, reject) => {
    waiting.push({path, resolve, reject});
    askNext();
  });
}
function askNext() {
  if (asking >= 3 || waiting.length === 0) return;
  const {path, resolve, reject} = waiting.shift();
  ++asking;
  ask(path).then(resolve, reject).finally(() => { --asking; askNext(); });
}

// ---------------------------------------------------------------- state

const ACTIVE = ['RUNNING', 'RECOVERING', 'PREPARING', 'QUEUED', 'SUSPENDED'];
const isActive = (job) => ACTIVE.includes(job.state);
const idOf = (job) => job.name.replace(/^jobs\//, '');

const jobs = new Map();       // by name
let members = [];
let olderToken = '';
let loaded = false;           // the list of jobs has been loaded
let live = null;              // the stream of changes
let signedOut = false;

const why = (job) => (job.trouble && job.trouble.message) || (job.waiting && job.waiting.message) || job.message || '';
// A training job needs no explanation, unless it has trouble.
const explains = (job) => !!job.trouble || (job.state !== 'RUNNING' && job.state !== 'SUCCEEDED');

function progressOf(job) {
  const progress = job.progress || {};
  const step = Number(progress.step || 0), total = Number(progress.total_steps || 0);
  return {step, total, share: total > 0 ? Math.min(1, step / total) : 0,
    loss: progress.loss, rate: progress.samples_per_second, remaining: seconds(progress.remaining)};
}

// ---------------------------------------------------------------- views

const VIEWS = ['jobs', 'queue', 'members', 'log', 'job'];
let route = {view: 'jobs', names: []};

function readRoute() {
  let parts = [];
  try {
    parts = location.hash.replace(/^#\/?/, '').split('/').filter(Boolean).map((part) => part.split(',').map(decodeURIComponent));
  } catch { /* no address of ours */ }
  const [first] = parts[0] || [''];
  if (first === 'members' && parts[1]) return {view: 'log', names: [parts[1][0]]};
  if (first === 'queue' || first === 'members') return {view: first, names: []};
  if (first === 'jobs' && parts[1]) return {view: 'job', names: parts[1].slice(0, 6).map((id) => `jobs/${id}`)};
  return {view: 'jobs', names: []};
}

function showRoute() {
  route = readRoute();
  for (const view of VIEWS) byId(`${view}-view`).hidden = view !== route.view || signedOut;
  for (const link of document.querySelectorAll('nav a')) {
    const here = link.hash === {jobs: '#/', job: '#/', queue: '#/queue', members: '#/members', log: '#/members'}[route.view];
    if (here) link.setAttribute('aria-current', 'page'); else link.removeAttribute('aria-current');
  }
  byId('fault').hidden = true;
  document.title = route.view === 'log' ? `${route.names[0]} · Muster` : route.view === 'job' ? `${route.names[0].replace(/^jobs\//, '')} · Muster` : 'Muster';
  if (signedOut) return;
  if (route.view === 'job') openJob(); else closeJob();
  if (route.view === 'log') openLog(); else log = null;
  if (route.view === 'queue') loadQueue().catch(showFault);
  render();
}

function showFault(error) {
  // The sign-in form shows status 401, and the state of the connection shows status 0.
  if (error.status === 401 || error.status === 0) return;
  const fault = byId('fault');
  fault.replaceChildren(foreign(error.message), error.hint ? ` – ${error.hint}` : '');
  fault.hidden = false;
}

function showLogin() {
  signedOut = true;
  if (live) live.close();
  setConnection('', 'signed out');
  byId('login').hidden = false;
  for (const view of VIEWS) byId(`${view}-view`).hidden = true;
  byId('sign-out').hidden = true;
}

function setConnection(kind, text) {
  const shown = byId('connection');
  shown.className = `connection ${kind}`;
  if (shown.textContent !== text) shown.textContent = text;
}

// Draws at most once per frame, however many changes arrive.
let rendering = false;
function render() {
  if (rendering) return;
  rendering = true;
  requestAnimationFrame(() => {
    rendering = false;
    if (signedOut) return;
    renderSummary();
    renderJobs();
    renderMembers();
    if (route.view === 'job') renderJob();
  });
}

function tiles(list, facts) {
  list.replaceChildren(...facts.map(([name, value, more]) =>
    el('div', {}, el('dt', {}, name), el('dd', {}, value, more ? el('small', {}, ` ${more}`) : null))));
}

function renderSummary() {
  const all = [...jobs.values()];
  const having = (...states) => all.filter((job) => states.includes(job.state));
  const rate = having('RUNNING').reduce((sum, job) => sum + (progressOf(job).rate || 0), 0);
  const role = (name) => members.filter((member) => member.role === name).length;
  tiles(byId('summary'), [
    ['Running', count(having('RUNNING', 'PREPARING').length)],
    ['Waiting', count(having('QUEUED', 'RECOVERING').length), having('SUSPENDED').length ? `${having('SUSPENDED').length} suspended` : ''],
    ['Failed', count(having('FAILED').length), olderToken ? 'of those shown' : ''],
    ['Workers', count(role('WORKER')), `${members.filter((m) => m.role === 'WORKER' && (m.jobs || []).length).length} busy`],
    ['Parameter servers', count(role('PS'))],
    ['Throughput', rate ? short.format(rate) : '–', 'samples/s'],
  ]);
}

// ---------------------------------------------------------------- jobs

const rows = new Map();       // by name: the row and its update function
const chosen = new Set();

function badge(job) {
  return el('span', {className: `badge ${job.state}`}, (job.state || 'UNKNOWN').toLowerCase());
}

function makeRow(job) {
  const id = idOf(job);
  const box = el('input', {type: 'checkbox', 'aria-label': `Compare ${id}`});
  box.addEventListener('change', () => {
    if (box.checked) chosen.add(job.name); else chosen.delete(job.name);
    renderComparison();
  });
  const state = el('td', {'data-label': 'State'});
  const bar = el('progress', {max: 1, 'aria-label': `Progress of ${id}`});
  const text = el('div', {className: 'progress-text'});
  const reason = el('div', {className: 'why'});
  const loss = el('td', {className: 'number', 'data-label': 'Loss'});
  const rate = el('td', {className: 'number', 'data-label': 'Samples/s'});
  const spark = el('td', {className: 'wide spark-cell'});
  const row = el('tr', {},
    el('td', {className: 'choose'}, box),
    el('td', {className: 'title'}, el('a', {className: 'name', href: `#/jobs/${encodeURIComponent(id)}`}, foreign(id)), reason),
    state, el('td', {className: 'wide', 'data-label': 'Progress'}, bar, text), loss, rate, spark);
  let shown = '', drawn = 0, drawing = false;
  const update = (now) => {
    const progress = progressOf(now);
    const text_now = JSON.stringify([now.state, now.message, now.progress, now.trouble]);
    if (text_now !== shown) {
      shown = text_now;
      state.replaceChildren(badge(now));
      bar.value = progress.share;
      text.textContent = progress.total
        ? `${count(progress.step)} of ${count(progress.total)} (${Math.floor(progress.share * 100)} %)${Number.isFinite(progress.remaining) && now.state === 'RUNNING' ? `, ${span(progress.remaining)} left` : ''}`
        : (progress.step ? `step ${count(progress.step)}` : 'not started');
      loss.textContent = figure(progress.loss);
      rate.textContent = now.state === 'RUNNING' ? figure(progress.rate) : '–';
      reason.replaceChildren(explains(now) ? foreign(why(now)) : '');
    }
    // The curve of a running job grows; that of an ended job is drawn once.
    if (!drawing && progress.step > 0 && (drawn === 0 || (isActive(now) && Date.now() - drawn > 10000))) {
      drawing = true;
      askInTurn(`jobs/${encodeURIComponent(id)}/series?names=loss&points=60`)
        .then((answer) => spark.replaceChildren(sparkline(answer.series[0].points)), () => {})
        .finally(() => { drawing = false; drawn = Date.now(); });
    }
  };
  return {row, update, box};
}

function sparkline(points) {
  const values = points.map((point) => point[4]).filter((value) => value !== null);
  if (values.length < 2) return '';
  const low = Math.min(...values), high = Math.max(...values), range = high - low || 1;
  const line = values.map((value, i) =>
    `${i ? 'L' : 'M'}${(i / (values.length - 1) * 150).toFixed(1)} ${(31 - (value - low) / range * 28).toFixed(1)}`).join('');
  return svg('svg', {class: 'spark', viewBox: '0 0 150 34', preserveAspectRatio: 'none', role: 'img',
    'aria-label': `loss from ${figure(values[0])} to ${figure(values[values.length - 1])}`},
    svg('path', {class: 'area', d: `${line}L150 34L0 34Z`}), svg('path', {d: line}));
}

function renderJobs() {
  const order = [...jobs.values()].sort((a, b) =>
    (isActive(b) - isActive(a)) || (isActive(a) ? ACTIVE.indexOf(a.state) - ACTIVE.indexOf(b.state) : 0) || Number(b.number) - Number(a.number));
  for (const [name, {row}] of rows) {
    if (jobs.has(name)) continue;
    row.remove();
    rows.delete(name);
  }
  if (route.view !== 'jobs') return;
  const body = byId('jobs').tBodies[0];
  order.forEach((job, i) => {
    if (!rows.has(job.name)) rows.set(job.name, makeRow(job));
    const known = rows.get(job.name);
    known.update(job);
    if (body.children[i] !== known.row) body.insertBefore(known.row, body.children[i] || null);
  });
  byId('jobs').hidden = order.length === 0;
  byId('no-jobs').hidden = order.length > 0 || !loaded;
  byId('more-jobs').hidden = !olderToken;
  renderComparison();
}

function renderComparison() {
  for (const name of chosen) if (!jobs.has(name)) chosen.delete(name);
  const link = byId('compare-link');
  link.hidden = chosen.size < 2;
  byId('compare-hint').textContent = chosen.size > 6 ? 'Six jobs at most are compared.'
    : chosen.size === 1 ? 'Choose another one to compare.' : chosen.size ? `${chosen.size} jobs chosen.` : 'Choose jobs to compare their curves.';
  link.href = `#/jobs/${[...chosen].slice(0, 6).map((name) => encodeURIComponent(name.replace(/^jobs\//, ''))).join(',')}`;
}

async function loadQueue() {
  const answer = await ask('queue');
  const list = byId('queue');
  list.replaceChildren(...answer.jobs.map((job, i) => el('li', {},
    el('div', {className: 'line'}, el('b', {}, `${i + 1}.`), el('a', {href: `#/jobs/${encodeURIComponent(idOf(job))}`}, foreign(idOf(job))), badge(job),
      el('span', {className: 'muted'}, `for ${span((Date.now() - moment(job.waits_since || job.create_time)) / 1000)}`),
      job.spec && job.spec.priority ? el('span', {className: 'muted'}, `priority ${job.spec.priority}`) : null),
    el('p', {}, foreign(why(job) || 'It waits for members.')))));
  byId('no-queue').hidden = answer.jobs.length > 0;
}

// ---------------------------------------------------------------- members

function renderMembers() {
  if (route.view !== 'members') return;
  byId('members').hidden = members.length === 0;
  byId('no-members').hidden = members.length > 0;
  byId('members').tBodies[0].replaceChildren(...members.map((member) => {
    const serves = el('td', {className: 'wide', 'data-label': 'Jobs'});
    const its = member.jobs || [];
    its.forEach((job, i) => serves.append(i ? ', ' : '', el('a', {href: `#/jobs/${encodeURIComponent(job.replace(/^jobs\//, ''))}`}, foreign(job.replace(/^jobs\//, '')))));
    if (its.length === 0) serves.append(el('span', {className: 'muted'}, 'idle'));
    if (member.leaving) serves.append(el('span', {className: 'muted'}, ' (leaving)'));
    const age = (Date.now() - moment(member.report_time)) / 1000;
    return el('tr', {},
      el('td', {className: 'wide'}, el('b', {}, logLink(member.name))),
      el('td', {'data-label': 'Role'}, member.role === 'PS' ? 'ps' : 'worker'), serves,
      el('td', {'data-label': 'Devices'}, foreign((member.devices || []).join(', ') || '–')),
      el('td', {'data-label': 'Host'}, foreign(`${member.host || '–'}`)),
      el('td', {'data-label': 'Transport'}, foreign(member.transport || '–')),
      el('td', {'data-label': 'Reported'}, age < 3 ? 'now' : `${span(age)} ago`));
  }));
}

// ---------------------------------------------------------------- logs of members

const LOG_LENGTH = 1 << 18;   // characters shown: as many as a member keeps
let log = null;

const logLink = (name) => el('a', {href: `#/members/${encodeURIComponent(name)}`, title: 'what it logs'}, foreign(name));

function openLog() {
  const [name] = route.names;
  if (log && log.name === name) return;
  log = {name, next: null, incarnation: '', loading: false};
  byId('log-title').replaceChildren(foreign(name));
  byId('log-text').textContent = '';
  byId('no-log').hidden = true;
  loadLog();
}

async function loadLog() {
  const now = log;
  if (now.loading) return;
  now.loading = true;
  try {
    const path = `members/${encodeURIComponent(now.name)}/log`;
    let part = await ask(now.next === null ? path : `${path}?offset=${now.next}`);
    // The offsets of another process start at 0 again.
    if (now.next !== null && part.incarnation !== now.incarnation) part = {...await ask(path), anew: true};
    if (log !== now) return;
    const box = byId('log'), text = byId('log-text');
    const below = box.scrollTop + box.clientHeight >= box.scrollHeight - 8;
    text.textContent = ((part.anew ? '' : text.textContent) + part.text).slice(-LOG_LENGTH);
    if (below) box.scrollTop = box.scrollHeight;
    now.next = part.next_offset;
    now.incarnation = part.incarnation;
    byId('no-log').hidden = true;
  } catch (error) {
    if (log !== now) return;
    byId('no-log').replaceChildren(foreign(error.message));
    byId('no-log').hidden = false;
  } finally {
    now.loading = false;
  }
}

// ---------------------------------------------------------------- one job, or several side by side

const CHARTS = [
  {name: 'loss', title: 'Loss', evaluation: 'evaluation_loss'},
  {name: 'samples_per_second', title: 'Samples per second', floor: true},
  {name: 'gradient_norm', title: 'Gradient norm'},
  {name: 'learning_rate', title: 'Learning rate', exact: true},
  {name: 'evaluation_accuracy', title: 'Evaluation accuracy', onlyIfThere: true, dots: true},
  {name: 'loss_scale', title: 'Loss scale', onlyIfThere: true, exact: true},
];
// Uses only the parts of the library that write no markup.
Dygraph.PLUGINS = [Dygraph.Plugins.Grid, Dygraph.Plugins.Axes];
const SERIES = [...new Set(CHARTS.flatMap((chart) => [chart.name, chart.evaluation]).filter(Boolean))];
const POINTS = 600;

// The view of the route's jobs.
let view = null;

function openJob() {
  const key = route.names.join(',');
  if (view && view.key === key) return;
  closeJob();
  view = {key, series: new Map(), details: new Map(), events: [], checkpoints: [], timing: null, links: null, linksAsked: 0, range: null, charts: new Map(), due: 0, version: 0, loading: false};
  loadJob().catch(showFault);
}

function closeJob() {
  if (!view) return;
  for (const chart of view.charts.values()) if (chart.plot) chart.plot.destroy();
  view = null;
  byId('charts').replaceChildren();
  byId('job-head').replaceChildren();
  byId('job-tiles').replaceChildren();
  byId('verdict').hidden = true;
}

async function loadJob() {
  const now = view;
  if (now.loading) { now.due = 1; return; }
  now.loading = true;
  now.due = 0;
  try {
    const first = encodeURIComponent(route.names[0].replace(/^jobs\//, ''));
    const details = await Promise.all(route.names.map((name) => ask(`jobs/${encodeURIComponent(name.replace(/^jobs\//, ''))}`)));
    const [events, checkpoints, timing, links] = await Promise.all([ask(`jobs/${first}/events`), ask(`jobs/${first}/checkpoints`),
      ask(`jobs/${first}/timing`).catch(() => null), loadLinks(now, first)]);
    if (view !== now) return;
    details.forEach((job) => { now.details.set(job.name, job); jobs.set(job.name, job); });
    now.events = events.events;
    now.checkpoints = checkpoints.checkpoints;
    now.timing = timing;
    now.links = links;
    await loadSeries(now);
  } finally {
    now.loading = false;
  }
  if (view === now) { render(); if (now.due) setTimeout(() => view === now && loadJob().catch(showFault), 1500); }
}

// There may be many links, and workers report them every five seconds.
function loadLinks(now, job) {
  if (Date.now() - now.linksAsked < 5000) return now.links;
  now.linksAsked = Date.now();
  return ask(`jobs/${job}/links`).catch(() => now.links);
}

async function loadSeries(now) {
  const range = now.range ? `&from=${Math.floor(now.range[0])}&to=${Math.ceil(now.range[1])}` : '';
  const answers = await Promise.all(route.names.map((name) =>
    ask(`jobs/${encodeURIComponent(name.replace(/^jobs\//, ''))}/series?names=${SERIES.join(',')}&points=${POINTS}${range}`)));
  if (view !== now) return;
  route.names.forEach((name, i) => now.series.set(name, new Map(answers[i].series.map((one) => [one.name, one.points]))));
  ++now.version;
}

function renderJob() {
  const job = view && (jobs.get(route.names[0]) || view.details.get(route.names[0]));
  if (!job) return;
  const progress = progressOf(job), more = job.progress || {};
  if (!view.head) {
    view.head = {state: el('span'), bar: el('progress', {max: 1, 'aria-label': 'Progress'}), text: el('div', {className: 'progress-text'})};
    byId('job-head').replaceChildren(el('p', {className: 'muted'}, el('a', {href: '#/'}, '← All jobs')),
      el('div', {className: 'job-line'}, el('h1', {id: 'job-title'}, foreign(idOf(job))), view.head.state),
      view.head.bar, view.head.text);
  }
  view.head.state.replaceChildren(badge(job));
  view.head.bar.value = progress.share;
  view.head.text.textContent = progress.total
    ? `step ${count(progress.step)} of ${count(progress.total)} · ${Math.floor(progress.share * 100)} %` : `step ${count(progress.step)}`;

  const message = byId('job-message');
  const words = explains(job) ? why(job) : '';
  message.hidden = !words;
  message.className = `callout ${job.state === 'FAILED' ? 'bad' : job.state === 'RECOVERING' || job.trouble ? 'warn' : ''}`;
  const reason = (job.trouble && job.trouble.reason) || job.reason;
  message.replaceChildren(reason ? el('b', {}, foreign(reason), ': ') : '', foreign(words));

  const start = moment(job.start_time), end = moment(job.end_time);
  const facts = [
    ['Loss', figure(progress.loss), more.first_loss !== undefined ? `from ${figure(more.first_loss)}` : ''],
    ['Samples per second', job.state === 'RUNNING' ? figure(progress.rate) : '–'],
    end ? ['Took', start ? span((end - start) / 1000) : '–'] : ['Left', job.state === 'RUNNING' ? span(progress.remaining) : '–'],
    ['Learning rate', figure(more.learning_rate)],
    ['Gradient norm', figure(more.gradient_norm)],
  ];
  if (more.evaluation_loss !== undefined) facts.splice(1, 0, ['Evaluation loss', figure(more.evaluation_loss),
    more.evaluation_accuracy !== undefined ? `${(more.evaluation_accuracy * 100).toFixed(1)} % right` : '']);
  const workers = (job.workers || []).length;
  facts.push(['Members', count(workers), `${workers === 1 ? 'worker' : 'workers'}, ${count((job.ps || []).length)} ps`]);
  if (job.recovery && job.recovery.count) facts.push(['Recoveries', count(job.recovery.count), `${count(job.recovery.steps_again)} steps again`]);
  tiles(byId('job-tiles'), facts);

  renderCurves();
  renderSteps();
  renderLinks();
  renderServing(job);
  renderEvents(job);
  renderCheckpoints();
  renderCompareWith();
}

function renderCompareWith() {
  const select = byId('compare-with');
  if (document.activeElement === select) return;
  const names = [...jobs.keys()].filter((name) => !route.names.includes(name)).slice(0, 200);
  const compares = route.names.length > 1;
  const key = `${compares} ${names.join(' ')}`;
  if (select.dataset.key === key) return;
  select.dataset.key = key;
  // The first option is the selected one. "none" ends a comparison.
  select.replaceChildren(...(compares ? [el('option', {value: ''}, 'another job')] : []), el('option', {value: 'none'}, 'none'),
    ...names.map((name) => el('option', {value: name}, name.replace(/^jobs\//, ''))));
}

const style = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

// An exponential moving average like TensorBoard's, without its bias to zero at the beginning.
function smooth(points, weight) {
  let sum = 0, mass = 0;
  return points.map((point) => {
    if (point[4] === null) return null;
    sum = sum * weight + point[4] * (1 - weight);
    mass = mass * weight + (1 - weight);
    return sum / mass;
  });
}

// Rows for the chart library: a step, then the low, middle and high value of each curve.
function rowsOf(chart) {
  const weight = chart.exact || chart.dots ? 0 : Number(byId('smoothing').value);
  const logarithmic = byId('logarithmic').checked;
  const curves = [];
  route.names.forEach((name, i) => {
    const series = view.series.get(name) || new Map();
    const points = series.get(chart.name) || [];
    const middle = smooth(points, weight);
    curves.push({job: i, dots: Boolean(chart.dots), points: points.map((p, k) => [p[1], p[2] ?? null, middle[k], p[3] ?? null])});
    const marks = chart.evaluation ? series.get(chart.evaluation) || [] : [];
    if (marks.length) curves.push({job: i, dots: true, rings: true, points: marks.map((p) => [p[1], p[4], p[4], p[4]])});
  });
  const byStep = new Map();
  curves.forEach((curve, k) => {
    for (const [step, low, middle, high] of curve.points) {
      if (middle === null || (logarithmic && middle <= 0)) continue;
      if (!byStep.has(step)) byStep.set(step, [step, ...curves.map(() => null)]);
      byStep.get(step)[k + 1] = [logarithmic ? Math.max(low, middle / 1e3) : low, middle, high];
    }
  });
  return {curves, rows: [...byStep.values()].sort((a, b) => a[0] - b[0])};
}

function renderCurves() {
  const legend = byId('legend');
  legend.replaceChildren(...(route.names.length < 2 ? [] : route.names.map((name, i) => el('li', {},
    svg('svg', {viewBox: '0 0 18 4'}, svg('rect', {width: 18, height: 4, rx: 2, fill: style(`--c${i}`)})),
    el('a', {href: `#/jobs/${encodeURIComponent(name.replace(/^jobs\//, ''))}`}, foreign(name.replace(/^jobs\//, '')))))));
  byId('unzoom').hidden = !view.range;
  const key = [view.version, byId('smoothing').value, byId('logarithmic').checked, matchMedia('(prefers-color-scheme: dark)').matches].join();
  if (view.drawn === key) return;
  view.drawn = key;
  for (const chart of CHARTS) drawChart(chart);
  // The first charts were drawn before the others took up room, so their size may be wrong.
  for (const {plot} of view.charts.values()) if (plot) plot.resize();
}

function drawChart(chart) {
  const {curves, rows} = rowsOf(chart);
  let known = view.charts.get(chart.name);
  if (chart.onlyIfThere && rows.length === 0) {
    if (known) { if (known.plot) known.plot.destroy(); known.box.remove(); view.charts.delete(chart.name); }
    return;
  }
  if (!known) {
    known = {reading: el('span', {className: 'reading'}), plot: null, shape: ''};
    known.place = el('div', {className: 'plot', role: 'img'});
    known.box = el('div', {className: 'chart'}, el('div', {className: 'top'}, el('h3', {}, chart.title), known.reading), known.place);
    view.charts.set(chart.name, known);
    byId('charts').append(known.box);
  }
  const last = [...rows].reverse().find((row) => row[1]);
  known.place.setAttribute('aria-label', rows.length ? `${chart.title}: ${rows.length} points, the last ${last ? `${figure(last[1][1])} at step ${count(last[0])}` : 'unknown'}` : `${chart.title}: nothing yet`);
  known.reading.textContent = last && route.names.length === 1 ? figure(last[1][1]) : '';
  if (rows.length === 0) {
    if (known.plot) { known.plot.destroy(); known.plot = null; }
    known.place.className = 'none';
    known.place.textContent = 'nothing yet';
    return;
  }
  const labels = ['step', ...curves.map((_, i) => `c${i}`)];
  const options = {
    labels, customBars: true, legend: 'never', connectSeparatedPoints: true, strokeWidth: 2, fillAlpha: 0.16, drawGapEdgePoints: true,
    logscale: byId('logarithmic').checked, includeZero: Boolean(chart.floor) && !byId('logarithmic').checked, dateWindow: view.range || null,
    axisLabelFontSize: 12, axisLineColor: style('--edge'), gridLineColor: style('--grid'), highlightCircleSize: 4, xRangePad: 4, yRangePad: 8,
    series: Object.fromEntries(curves.map((curve, i) => [`c${i}`, {
      // The evaluations of one job have a color of their own. With several jobs the color identifies the job.
      color: style(curve.rings && route.names.length === 1 ? '--c1' : `--c${curve.job}`),
      ...(curve.rings ? {drawPointCallback: drawRing, drawHighlightPointCallback: drawRing} : {}),
      ...(curve.dots ? {strokeWidth: chart.dots ? 1.5 : 0, drawPoints: true, pointSize: 4} : rows.length < 3 ? {drawPoints: true, pointSize: 3} : {})}])),
    axes: {x: {axisLabelFormatter: (value) => short.format(value), valueFormatter: (value) => `step ${count(value)}`, pixelsPerLabel: 70},
      y: {axisLabelFormatter: (value) => (Math.abs(value) >= 10000 ? short.format(value) : figure(value)), axisLabelWidth: 58}},
    underlayCallback: (context, area, plot) => drawMarks(context, area, plot),
    highlightCallback: (event, x, found) => {
      known.reading.textContent = `step ${count(x)}: ${found.filter((p) => p.yval !== null && !Number.isNaN(p.yval)).map((p) => figure(p.yval)).join(' · ')}`;
    },
    unhighlightCallback: () => { known.reading.textContent = last && route.names.length === 1 ? figure(last[1][1]) : ''; },
    zoomCallback: (from, to) => zoom(known.plot.isZoomed('x') ? [from, to] : null),
  };
  const shape = curves.map((curve) => `${curve.job}${curve.dots}`).join();
  if (known.plot && known.shape === shape) {
    known.plot.updateOptions({...options, file: rows});
  } else {
    if (known.plot) known.plot.destroy();
    known.place.className = 'plot';
    known.place.replaceChildren();
    known.shape = shape;
    known.plot = new Dygraph(known.place, rows, options);
  }
}

// Draws a point as a ring, which does not hide the curve.
function drawRing(plot, name, context, x, y, color, size) {
  context.save();
  context.strokeStyle = color;
  context.lineWidth = 1.5;
  context.beginPath();
  context.arc(x, y, size, 0, 2 * Math.PI);
  context.stroke();
  context.restore();
}

// The steps at which the job continued after a recovery, from its events.
function resumedSteps(events) {
  return events.filter((event) => event.reason === 'SCHEDULED')
    .map((event) => /^generation (\d+) .*, from step (\d+)$/.exec(event.message || ''))
    .filter((found) => found && Number(found[1]) > 1)
    .map((found) => Number(found[2]));
}

// Marks between steps: checkpoints and resume points.
function drawMarks(context, area, plot) {
  const line = (step, color, dashes) => {
    const x = plot.toDomXCoord(Number(step));
    if (!(x >= area.x && x <= area.x + area.w)) return;
    context.save();
    context.strokeStyle = color;
    context.setLineDash(dashes);
    context.beginPath();
    context.moveTo(x, area.y);
    context.lineTo(x, area.y + area.h);
    context.stroke();
    context.restore();
  };
  if (!view || route.names.length > 1) return;
  for (const checkpoint of view.checkpoints) line(checkpoint.step || 0, style('--c2'), [3, 4]);
  for (const step of resumedSteps(view.events)) line(step, style('--bad'), []);
}

let zooming = 0;
function zoom(range) {
  if (!view) return;
  view.range = range;
  const turn = ++zooming, now = view;
  setTimeout(() => {
    if (turn !== zooming || view !== now) return;
    loadSeries(now).then(render, showFault);
  }, 120);
}

// ---------------------------------------------------------------- where a step's time goes

// The known phases of a step. On a GPU its computation is one phase.
const PHASES = [
  ['forward', (t) => t.forward_seconds || 0], ['backward', (t) => t.backward_seconds || 0],
  ['other computing', (t) => Math.max(0, (t.compute_seconds || 0) - (t.forward_seconds || 0) - (t.backward_seconds || 0))],
  ['waits for samples', (t) => t.data_seconds || 0], ['waits for parameters', (t) => t.wait_seconds || 0],
];

// The stages of reading a sample. A worker that reads no files tells none.
const STAGES = [
  ['open', (t) => t.open_seconds || 0], ['read', (t) => t.read_seconds || 0], ['decode', (t) => t.decode_seconds || 0],
  ['resample', (t) => t.resample_seconds || 0], ['augment', (t) => t.augment_seconds || 0],
];

function renderInput(workers) {
  const cost = (worker) => STAGES.reduce((sum, [, of]) => sum + of(worker.timing.input), 0) / Number(worker.timing.input.samples);
  const readers = workers.filter((worker) => Number((worker.timing.input || {}).samples) > 0 && cost(worker) > 0);
  byId('input-card').hidden = readers.length === 0;
  if (readers.length === 0) return;
  const longest = Math.max(...readers.map(cost));
  byId('input').replaceChildren(legend(STAGES), ...readers.map((worker) => {
    const samples = Number(worker.timing.input.samples);
    const words = `${(cost(worker) * 1e3).toFixed(2)} ms, ${Math.round((worker.timing.input.threads || 1) / cost(worker))} samples/s at most`;
    return bars(worker.member, STAGES.map(([, of]) => 100 * of(worker.timing.input) / samples / longest), words);
  }));
}

function legend(parts) {
  return el('ul', {className: 'legend'}, ...parts.map(([name], i) =>
    el('li', {}, svg('svg', {viewBox: '0 0 18 4'}, svg('rect', {class: `phase-${i}`, width: 18, height: 4, rx: 2})), name)));
}

// One worker's row: parts of `widths` per cent beside each other.
function bars(member, widths, words) {
  let x = 0;
  const parts = widths.map((width, i) => {
    const part = svg('rect', {class: `phase-${i}`, x, y: 0, width, height: 10});
    x += width;
    return part;
  });
  return el('div', {className: 'steps-row'}, foreign(member),
    svg('svg', {viewBox: '0 0 100 10', preserveAspectRatio: 'none', role: 'img', 'aria-label': words}, ...parts), el('span', {className: 'muted number'}, words));
}

function renderSteps() {
  const workers = ((view.timing && view.timing.members) || []).filter((worker) => worker.timing && Number(worker.timing.steps) > 0);
  const verdict = (view.timing && view.timing.verdict) || [];
  byId('verdict').hidden = verdict.length === 0;
  byId('verdict').replaceChildren(...verdict.map((line) => el('p', {}, foreign(line))));
  byId('steps-card').hidden = workers.length === 0;
  renderInput(workers);
  if (workers.length === 0) return;
  const mean = (worker) => (worker.timing.step_seconds || 0) / Number(worker.timing.steps);
  const longest = Math.max(...workers.map(mean), 1e-9);
  byId('steps').replaceChildren(legend(PHASES), ...workers.map((worker) => {
    const words = `${(mean(worker) * 1e3).toFixed(1)} ms, ${Math.round(100 * (worker.timing.wait_seconds || 0) / (worker.timing.step_seconds || 1))} % waiting`;
    return bars(worker.member, PHASES.map(([, of]) => 100 * of(worker.timing) / Number(worker.timing.steps) / longest), words);
  }));
}

// ---------------------------------------------------------------- links of a job

const LINKS = 200;            // limit of rows

function renderLinks() {
  const told = (view.links && view.links.members) || [];
  if (view.shownLinks === told) return;
  view.shownLinks = told;
  const all = told.flatMap((worker) => (worker.links || []).map((link) => [worker.member, link]));
  byId('links-card').hidden = all.length === 0;
  byId('links').tBodies[0].replaceChildren(...all.slice(0, LINKS).map(([worker, link]) => {
    const below = [link.network !== link.transport ? link.network : '', link.device].filter(Boolean).join(', ');
    return el('tr', {},
      el('td', {'data-label': 'Worker'}, el('b', {}, foreign(worker || '–'))),
      el('td', {'data-label': 'Peer'}, foreign(link.peer || '–')),
      el('td', {'data-label': 'Transport'}, foreign(link.transport || '–'), below ? el('span', {className: 'muted'}, ' (', foreign(below), ')') : null,
        link.fallback ? el('div', {className: 'why'}, 'fell back: ', foreign(link.fallback)) : null),
      el('td', {'data-label': 'Security'}, foreign(link.security || '–')),
      el('td', {className: 'number', 'data-label': 'Sent'}, bytes(link.sent_bytes)),
      el('td', {className: 'number', 'data-label': 'Received'}, bytes(link.received_bytes)));
  }));
  const more = all.length - Math.min(all.length, LINKS) + told.reduce((sum, worker) => sum + Number(worker.links_left_out || 0), 0);
  byId('more-links').hidden = more === 0;
  byId('more-links').textContent = `${count(more)} more are not shown.`;
}

// ---------------------------------------------------------------- members of a job

function renderServing(job) {
  const its = new Set([...(job.workers || []), ...(job.ps || [])]);
  const serving = members.filter((member) => its.has(member.name));
  byId('serving-card').hidden = serving.length === 0;
  const key = JSON.stringify(serving.map((member) => [member.name, member.host, member.transport]));
  if (view.shownServing === key) return;
  view.shownServing = key;
  byId('serving').replaceChildren(...serving.map((member) => el('li', {}, el('b', {}, logLink(member.name)),
    el('span', {className: 'muted'}, member.role === 'PS' ? 'ps' : 'worker', ' on ', foreign(member.host || '–'), ', ', foreign((member.devices || []).join(', ') || member.transport || '–'),
      member.devices && member.transport ? ', ' : '', member.devices && member.transport ? foreign(member.transport) : ''))));
}

// ---------------------------------------------------------------- events and checkpoints

function renderEvents(job) {
  const events = view.events.filter((event) => event.time);
  const key = `${events.length} ${events.length ? events[events.length - 1].revision : ''} ${job.state}`;
  if (view.shownEvents === key && !isActive(job)) return;
  if (view.shownEvents !== key) {
    byId('events').replaceChildren(...[...events].reverse().map((event) => el('li', {},
      el('time', {dateTime: event.time}, clock(moment(event.time))), el('b', {}, foreign(event.reason || '')), foreign(event.message || ''))));
  }
  view.shownEvents = key;
  const timeline = byId('timeline');
  if (events.length === 0) { timeline.replaceChildren(); return; }
  const from = moment(events[0].time).getTime();
  const to = Math.max(job.end_time ? moment(job.end_time).getTime() : Date.now(), from + 1000);
  const at = (time) => 1000 * (time - from) / (to - from);
  const picture = svg('svg', {viewBox: '0 0 1000 30', preserveAspectRatio: 'none', role: 'img', 'aria-label': 'The states of the job over time'});
  events.forEach((event, i) => {
    const begin = at(moment(event.time).getTime());
    const end = i + 1 < events.length ? at(moment(events[i + 1].time).getTime()) : 1000;
    const over = ['SUCCEEDED', 'FAILED', 'CANCELLED'].includes(event.state);
    picture.append(svg('rect', {class: event.state || '', x: over ? Math.min(begin, 994) : begin, y: 0, width: Math.max(over ? 6 : 0.5, end - begin), height: 30}));
  });
  for (const event of events) {
    const x = at(moment(event.time).getTime());
    picture.append(svg('rect', {class: 'mark', x: Math.min(x, 998), y: 22, width: 2, height: 8},
      svg('title', {}, `${event.reason}: ${event.message || ''}`)));
  }
  timeline.replaceChildren(picture, el('div', {className: 'ends'}, el('span', {}, clock(new Date(from))), el('span', {}, job.end_time ? clock(new Date(to)) : 'now')));
}

function renderCheckpoints() {
  const key = view.checkpoints.map((checkpoint) => checkpoint.name).join();
  if (view.shownCheckpoints === key) return;
  view.shownCheckpoints = key;
  byId('no-checkpoints').hidden = view.checkpoints.length > 0;
  byId('checkpoints').replaceChildren(...[...view.checkpoints].reverse().map((checkpoint) => {
    const base = `/api/v1/jobs/${encodeURIComponent(checkpoint.job)}/checkpoints/${encodeURIComponent(checkpoint.step || 0)}/files/`;
    return el('li', {}, el('b', {}, `step ${count(checkpoint.step)}`), el('span', {className: 'muted'}, `${bytes(checkpoint.size_bytes)}, ${checkpoint.create_time ? clock(moment(checkpoint.create_time)) : ''}`),
      el('span', {className: 'files'}, ...(checkpoint.files || []).map((file) => el('a', {href: base + encodeURIComponent(file.name), download: file.name}, foreign(file.name)))));
  }));
}

// ---------------------------------------------------------------- updates

function loadMembers() {
  return ask('members').then((fleet) => { members = fleet.members || []; render(); });
}

// All jobs that have not ended, for the numbers above the table.
async function loadActive() {
  const active = [];
  let token = '';
  do {
    const page = await ask(`jobs?page_size=200&states=${ACTIVE.join(',')}${token ? `&page_token=${encodeURIComponent(token)}` : ''}`);
    active.push(...page.jobs);
    token = page.next_page_token;
  } while (token);
  return active;
}

async function loadJobs() {
  const [newest, active] = await Promise.all([ask('jobs?page_size=50'), loadActive()]);
  jobs.clear();
  for (const job of [...newest.jobs, ...active]) jobs.set(job.name, job);
  olderToken = newest.next_page_token;
  loaded = true;
  render();
}

function loadAll() {
  const parts = [loadJobs(), loadMembers(), ask('server').then((server) => { byId('sign-out').hidden = !server.signed_in; })];
  if (route.view === 'queue') parts.push(loadQueue());
  if (view) parts.push(loadJob());
  return Promise.all(parts);
}

function follow() {
  if (live) live.close();
  live = new EventSource('/api/v1/events');
  live.addEventListener('hello', () => {
    setConnection('live', 'live');
    byId('fault').hidden = true;
    loadAll().catch(showFault);
  });
  live.addEventListener('job', (event) => {
    const job = JSON.parse(event.data);
    jobs.set(job.name, job);
    if (view && route.names.includes(job.name)) loadJob().catch(showFault);
    if (route.view === 'queue') loadQueue().catch(showFault);
    render();
  });
  live.addEventListener('deleted', (event) => {
    jobs.delete(JSON.parse(event.data).name);
    render();
  });
  live.addEventListener('members', () => loadMembers().catch(showFault));
  // Polls while there is no stream, because there are too many streams or the coordinator is away.
  live.onerror = () => {
    if (signedOut) return;
    const gone = live.readyState === EventSource.CLOSED;
    setConnection('lost', 'not connected');
    ask('server').then(() => {
      if (!gone) return;
      setConnection('', 'reloads every 10 s');
      loadAll().catch(showFault);
    }, () => {});
    if (gone) setTimeout(() => signedOut || follow(), 10000);
  };
}

byId('login-form').addEventListener('submit', async (event) => {
  event.preventDefault();
  const answer = await fetch('/login', {method: 'POST', body: new URLSearchParams({token: byId('token').value})}).catch(() => null);
  if (!answer || !answer.ok) {
    byId('login-fault').textContent = answer ? 'The coordinator does not know this token, or the token has expired.' : 'The coordinator does not answer.';
    return;
  }
  byId('token').value = '';
  byId('login-fault').textContent = '';
  byId('login').hidden = true;
  signedOut = false;
  showRoute();
  follow();
});
byId('sign-out').addEventListener('click', () => fetch('/logout', {method: 'POST'}).then(showLogin, showFault));
byId('more-jobs').addEventListener('click', () => ask(`jobs?page_size=50&page_token=${encodeURIComponent(olderToken)}`).then((answer) => {
  for (const job of answer.jobs) jobs.set(job.name, job);
  olderToken = answer.next_page_token;
  render();
}, showFault));
byId('smoothing').addEventListener('input', render);
byId('logarithmic').addEventListener('change', render);
byId('unzoom').addEventListener('click', () => zoom(null));
byId('compare-with').addEventListener('change', (event) => {
  const value = event.target.value;
  if (!value) return;
  const names = value === 'none' ? route.names.slice(0, 1) : [...route.names, value];
  location.hash = `#/jobs/${names.map((name) => encodeURIComponent(name.replace(/^jobs\//, ''))).join(',')}`;
});
matchMedia('(prefers-color-scheme: dark)').addEventListener('change', render);
window.addEventListener('hashchange', showRoute);
setInterval(() => {
  if (signedOut || document.hidden) return;
  render();
  if (log) loadLog();
}, 5000);

showRoute();
ask('server').then(follow, (error) => { showFault(error); if (error.status !== 401) follow(); });
})();
