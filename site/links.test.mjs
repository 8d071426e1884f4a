// Reads the built site, without a browser.
import assert from 'node:assert/strict'
import fs from 'node:fs'
import path from 'node:path'
import { test } from 'node:test'
import { out, pages as files, where } from './repository.mjs'

const pages = files.map(where)
const origin = 'http://site'

test('each link within the site finds a page, and the heading', () => {
  const html = new Map(pages.map((page) => [page, fs.readFileSync(path.join(out, page.replace(/\/$/, '/index.html')), 'utf8')]))
  let headings = 0
  for (const [page, text] of html) {
    for (const [, href] of text.matchAll(/<a [^>]*?href="([^"]*)"/g)) {
      const to = new URL(href, origin + page)
      if (to.origin === origin) {
        headings += to.hash ? 1 : 0
        const id = to.hash ? ` id="${decodeURIComponent(to.hash.slice(1))}"` : ''
        assert.ok(html.get(to.pathname)?.includes(id), `${page}: ${href}`)
      }
    }
  }
  assert.ok(headings > pages.length)
})
