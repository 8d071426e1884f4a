// What the site shows of the repository: README.md, the pages of docs, and the README.md of each example.
import fs from 'node:fs'
import path from 'node:path'
import { fileURLToPath } from 'node:url'

export const root = path.resolve(path.dirname(fileURLToPath(import.meta.url)), '..')
export const out = path.join(root, 'bin/site')
export const base = process.env.SITE_BASE ?? '/'
export const url = 'https://github.com/guestwire/guestwire'

const read = (file) => fs.readFileSync(path.join(root, file), 'utf8')
const below = (folder) => fs.readdirSync(path.join(root, folder), { recursive: true }).map((name) => path.join(folder, name))

// The pages, as paths from the root.
export const pages = [
  'README.md',
  ...below('docs').filter((file) => file.endsWith('.md')),
  ...below('examples').filter((file) => path.basename(file) === 'README.md'),
]

export const title = (file) => read(file).match(/^# (.*)$/m)?.[1].replaceAll('`', '') ?? file

// groups returns the rows of the table in README's section Documentation: the name of each, and the pages to which it links,
// in their order. A row without links has those of the section Tutorials, which the other rows leave out. It is an error if a
// page is in no row.
export function groups() {
  const sections = read('README.md').split(/^## /m)
  const section = (name) => sections.find((text) => text.startsWith(name + '\n')) ?? ''
  const links = (text) => [...text.matchAll(/\]\(([^)#]+)\)/g)].map(([, file]) => file).filter((file) => pages.includes(file))
  const rows = [...section('Documentation').matchAll(/^\| (\w[\w ]*) \| (.*) \|$/gm)].slice(1)
  const tutorials = links(section('Tutorials'))
  const found = rows.map(([, name, text]) => {
    const linked = links(text)
    const others = linked.filter((file) => !tutorials.includes(file))
    return { name: name[0].toUpperCase() + name.slice(1), pages: linked.length > 0 ? others : tutorials }
  })
  const missing = pages.slice(1).filter((file) => found.filter((group) => group.pages.includes(file)).length !== 1)
  if (missing.length > 0) {
    throw new Error(`README.md, Documentation: ${missing.join(', ')} has to be in one row`)
  }
  return found
}

// address returns a page's address on the site.
export const address = (file) => '/' + file.replace(/(^|\/)README\.md$/, '$1').replace(/\.md$/, '')

// where returns the path of a page's file on the site.
export const where = (file) => address(file).replace(/([^/])$/, '$1.html')

// heading returns the anchor that GitHub gives a heading.
export const heading = (text) =>
  text.trim().toLowerCase().replace(/[^\p{L}\p{N} _-]/gu, '').replaceAll(' ', '-')
