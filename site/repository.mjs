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

// index is the page whose table has all the others.
export const index = 'docs/README.md'

// groups returns the rows of the index: the name of each, and the pages to which it links, in their order. It is an error if a
// page is not in one row.
export function groups() {
  const found = [...read(index).matchAll(/^\| (\w[\w ]*) \| (.*) \|$/gm)].slice(1).map(([, name, text]) => ({
    name: name[0].toUpperCase() + name.slice(1),
    pages: [...text.matchAll(/\]\(([^)#]+)\)/g)].map(([, file]) => path.join('docs', file)).filter((file) => pages.includes(file)),
  }))
  const missing = pages.slice(1).filter((file) => file !== index && found.filter((group) => group.pages.includes(file)).length !== 1)
  if (missing.length > 0) {
    throw new Error(`${index}: ${missing.join(', ')} has to be in one row`)
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
