// What the site shows of the repository: README.md, and the pages of docs by folder.
import fs from 'node:fs'
import path from 'node:path'
import { fileURLToPath } from 'node:url'

export const root = path.resolve(path.dirname(fileURLToPath(import.meta.url)), '..')
export const out = path.join(root, 'bin/site')
export const base = process.env.SITE_BASE ?? '/'
export const url = 'https://github.com/guestwire/guestwire'

// The order of the folders that have one; others follow.
const order = ['tutorials', 'how-to', 'reference', 'explanation', 'results', 'contributing']

const title = (file) => fs.readFileSync(path.join(root, file), 'utf8').match(/^# (.*)$/m)?.[1].replaceAll('`', '') ?? file

// folders returns the folders of docs that hold pages, each with its pages; a page is its path from the root and its title.
export function folders() {
  const rank = (name) => (order.includes(name) ? order.indexOf(name) : order.length)
  return fs
    .readdirSync(path.join(root, 'docs'), { withFileTypes: true })
    .filter((entry) => entry.isDirectory())
    .map(({ name }) => ({ name, pages: pages(path.join('docs', name)) }))
    .filter((folder) => folder.pages.length > 0)
    .sort((a, b) => rank(a.name) - rank(b.name) || a.name.localeCompare(b.name))
}

// A page named first-... is the folder's first.
function pages(folder) {
  const first = (page) => (path.basename(page.file).startsWith('first-') ? 0 : 1)
  return fs
    .readdirSync(path.join(root, folder))
    .filter((name) => name.endsWith('.md'))
    .map((name) => ({ file: path.join(folder, name), title: title(path.join(folder, name)) }))
    .sort((a, b) => first(a) - first(b) || a.title.localeCompare(b.title))
}

// address returns a page's address on the site.
export const address = (file) => (file === 'README.md' ? '/' : '/' + file.replace(/\.md$/, ''))

// heading returns the anchor that GitHub gives a heading.
export const heading = (text) =>
  text.trim().toLowerCase().replace(/[^\p{L}\p{N} _-]/gu, '').replaceAll(' ', '-')
